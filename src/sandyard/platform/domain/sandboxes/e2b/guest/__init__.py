"""Programs that run inside sandboxes. `guest_sources` reads them as text; the platform imports none of them."""
