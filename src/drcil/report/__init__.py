"""Reports: tables for the terminal and plots, from the results that runs leave behind."""
