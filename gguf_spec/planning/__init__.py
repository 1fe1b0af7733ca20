"""The rules behind ``plan``: tiers of the target, admission of drafts, expected speed."""
