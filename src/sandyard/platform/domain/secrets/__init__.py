"""Values that go in and come out only where the platform itself needs them."""
