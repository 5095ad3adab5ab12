"""What a program that writes holds: writers, transactions, what workers carry."""
