// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// A TLS client with Go's defaults: get ADDRESS CA-FILE prints the answer to one request.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := get(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func get(address, authority string) error {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", authority)
	}
	connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: "localhost"})
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := fmt.Fprint(connection, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, connection)
	return err
}
