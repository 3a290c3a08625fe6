"""`headrace bench SUITE`: figures with goals and how each was measured."""
