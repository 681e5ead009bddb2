module github.com/rowlock/rowlock/clients/go

go 1.19
