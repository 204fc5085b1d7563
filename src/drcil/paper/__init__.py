"""The paper as data: its published tables, and the runs that each of their cells asks for."""
