"""Users, their tokens, cookies and tickets."""
