module github.com/rowlock/rowlock/client/go

go 1.19
