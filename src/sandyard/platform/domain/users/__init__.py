"""Who may do what: people, their tokens, cookies and tickets."""
