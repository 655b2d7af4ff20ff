"""Time, driven: firing what is due; listing, moving and cancelling what is pending; recurrences."""
