"""Third-party clients of E2B: `clients.toml` lists them, and one script per client says what is tested."""
