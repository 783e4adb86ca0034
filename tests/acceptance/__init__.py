"""What a user does, and what must never happen to them."""
