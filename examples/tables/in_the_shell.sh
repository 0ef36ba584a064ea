#!/bin/sh
# Fit components to files with ids, labels, gaps, and columns in any order, from the shell.
#
#     python examples/tables/make_tables.py FOLDER
#     sh examples/tables/in_the_shell.sh FOLDER
set -eu
cd "$1"

# Tumors at three clinics: the check finds the gaps, which the fit fills with the mean.
clinics="north.csv south.tsv.gz west.parquet"
columns="--id patient --drop diagnosis"
fedpca check $clinics $columns && exit 1  # the gaps would stop a fit
fedpca check $clinics $columns --allow-missing
fedpca fit $clinics $columns --scale --missing mean --seed 0 -o tumors.fedpca
fedpca transform tumors.fedpca north.csv --id patient -o north-scores.csv
fedpca info tumors.fedpca

# Wines: find what the three cultivars share, and what is specific to each.
wines="barbera.csv barolo.csv grignolino.csv"
fedpca fit $wines --kind personalized --shared 2 --local 1 --scale --seed 0 \
    -o wines.fedpca --local-models cultivars

# Diabetes: a few decimal points are in the wrong place.
fedpca fit east.csv center.csv --id record --kind robust -k 2 --scale --seed 0 \
    -o diabetes.fedpca --outliers outliers.csv

# Digits: two archives write summaries, which are merged without a server.
for archive in archive1 archive2; do
    fedpca summarize $archive.feather --drop label --id image -k 40 -o $archive.summary
done
fedpca merge archive1.summary archive2.summary -o digits.fedpca
