"""Tests of the web application in a real Chromium, with the real platform, engine and demo agent."""
