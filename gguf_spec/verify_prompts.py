"""The texts that ``verify`` decodes: what n-grams repeat, what models find easy, and what is hard.

They are completed as they stand, without a chat template, so that any model can be examined.
"""

from __future__ import annotations

_LIST = "one, two, three, four, five, six, seven, eight, nine, ten, "

PROMPTS: tuple[str, ...] = (
    "Repeat this line five times.\n\nThe ferry leaves at noon.\nThe ferry leaves at noon.\n",
    "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return width * height * depth\n\n"
    "def surface(width, height, depth):\n",
    "On the last evening of the summer the old lighthouse keeper climbed the stairs and",
    '{"city": "Lima", "people": 10092000}\n{"city": "Oslo", "people": 709000}\n{"city": "Kyoto",',
    "Question: Why does ice float on water?\nAnswer:",
    "Count on and on: " + _LIST * 12,
    "| tool | price | stock |\n|---|---|---|\n| hammer | 12.50 | 40 |\n| saw | 19.90 | 12 |\n",
    "English: Where is the station?\nDeutsch: Wo ist der Bahnhof?\n日本語: 駅はどこですか。\n"
    "English: The train is late.\nDeutsch:",
)

#: What fills the cache for the comparison of widths; repeated as long as needed.
FILLER = (
    "A lock on a river is a chamber with a gate at either end. A boat that goes upstream enters "
    "by the lower gate, which closes behind it; water from above is let in until the levels agree, "
    "and the upper gate opens. Where the gates close in a blunt V against the higher water, the "
    "pressure itself keeps them shut.\n\nfor step, level in enumerate(levels):\n    "
    'if level > limit[step]:\n        print(f"gate {step}: {level - limit[step]:.2f} m too high")'
    "\n\n"
)
