"""Test every verb of the E2B endpoint with the unmodified SDKs and a real engine, with valid and invalid input."""
