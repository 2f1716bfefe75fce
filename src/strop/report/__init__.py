"""Pages to look at: one offline HTML file from the folders of one or more runs."""
