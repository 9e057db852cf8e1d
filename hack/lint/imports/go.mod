// The check of the imports between the driver's files.
module rootcellar.dev/hack/lint/imports

go 1.26.0
