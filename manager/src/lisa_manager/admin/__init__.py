"""The queries and actions of operators, as flows. The commands run them and show the results."""
