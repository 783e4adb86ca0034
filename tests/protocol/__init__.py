"""The unmodified E2B SDKs against a real engine: every verb of the endpoint, with good and with bad input."""
