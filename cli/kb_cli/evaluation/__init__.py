"""`kb eval`: how well searches answer questions whose answers are known."""
