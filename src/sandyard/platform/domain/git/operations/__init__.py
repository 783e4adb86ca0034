"""Operations on checkouts: their queue, and a handler for each kind."""
