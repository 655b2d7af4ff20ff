"""The pure core of delivery: who gets which offsets, until when, and what is done."""
