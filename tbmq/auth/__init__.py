"""Who may come in, and what they may do. `model` has the words; start there."""
