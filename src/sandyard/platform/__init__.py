"""The half that people and agents use: sessions, sandboxes, events. It knows no namespaces, only E2B."""
