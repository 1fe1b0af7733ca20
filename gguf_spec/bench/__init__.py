"""Measuring speed: with drafts beside without, in pairs, and only where the texts are equal.

statistics   medians and their intervals
theory       what the formulas of the literature predict, and what makes the difference
setups       what is compared: plain decoding, spec types, drafts of a given acceptance
runner       conversations, and rounds of runs in alternating order
peer         a llama-server that gets the same prompts
compare      pairs of runs become ratios, where the texts allow that
document     all of it as JSON
records      files of such documents, none of which is ever overwritten
table        a document as text
chart        a document as a picture
"""
