"""Programs that show Waterclock at work. They run from a clone; the wheel does not have them."""
