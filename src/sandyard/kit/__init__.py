"""Small helpers that any package may use. They know nothing about the product's domain."""
