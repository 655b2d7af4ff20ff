"""The pure core of delivery: which member gets which offsets, until when, and what is done."""
