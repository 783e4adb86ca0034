"""The web in a real Chromium, with the real platform, engine and demo agent behind it."""
