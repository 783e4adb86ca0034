"""Traffic into sandboxes: routing, access checks, the HTTP relay and the WebSocket tunnel."""
