package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"redleaf/scripts/services"
)

// TestTLS: TLS, mutual TLS, certificates replaced while the server runs, and each side speaking to the wrong kind of port.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	files := services.MakeTLS(t, dir)
	r := startRig(t, rigOptions{})
	serve := func(clientCA string) (addr string, certs *Certificates) {
		certs, err := LoadCertificates(files.Cert, files.Key, clientCA)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(r.engine, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(Listener{Listener: tls.NewListener(ln, certs.Config())}) }()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			s.Shutdown(ctx)
			<-done
		})
		return ln.Addr().String(), certs
	}
	trust := func() *x509.CertPool {
		pem, err := os.ReadFile(files.CA)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		return pool
	}
	ask := func(addr string, c *tls.Config) (*client, error) {
		nc, err := tls.Dial("tcp", addr, c)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := nc.Write([]byte(wire("PING"))); err != nil {
			return nil, err
		}
		cl := &client{t, nc, bufio.NewReader(nc)}
		_, err = readReply(cl.br)
		return cl, err
	}
	addr, certs := serve("")
	old := trust()
	c, err := ask(addr, &tls.Config{RootCAs: old})
	if err != nil {
		t.Fatal(err)
	}
	c.wantLine(":1\r\n", "INCR order")
	c.send(strings.Repeat(wire("INCRBY", "order", "1"), 1000))
	for range 999 {
		c.reply()
	}
	wantReply(t, "the last of a pipeline", c.reply(), ":1001\r\n")

	// Mutual TLS.
	mutual, _ := serve(files.CA)
	if _, err := ask(mutual, &tls.Config{RootCAs: old}); err == nil {
		t.Error("a client without a certificate was let in")
	}
	pair, err := tls.LoadX509KeyPair(files.ClientCert, files.ClientKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(mutual, &tls.Config{RootCAs: old, Certificates: []tls.Certificate{pair}}); err != nil {
		t.Errorf("mutual TLS: %v", err)
	}

	// Other files in the same place: new connections see them after a reload, old ones go on.
	files = services.MakeTLS(t, dir)
	if _, err := ask(addr, &tls.Config{RootCAs: old}); err != nil {
		t.Errorf("before the reload: %v", err)
	}
	if err := certs.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(addr, &tls.Config{RootCAs: old}); err == nil {
		t.Error("the old certificate is still shown")
	}
	if _, err := ask(addr, &tls.Config{RootCAs: trust()}); err != nil {
		t.Errorf("after the reload: %v", err)
	}
	c.wantLine(":1002\r\n", "INCR order")
	if err := os.WriteFile(files.Cert, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := certs.Reload(); err == nil || !strings.Contains(err.Error(), "tls.cert "+files.Cert) {
		t.Errorf("rubbish: %v", err)
	}
	if _, err := ask(addr, &tls.Config{RootCAs: trust()}); err != nil {
		t.Errorf("after a reload that failed: %v", err)
	}

	plain := connect(t, addr)
	plain.send(wire("INCR", "order"))
	plain.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if b, _ := plain.br.Peek(1); len(b) > 0 && b[0] == ':' {
		t.Error("a plain client was served on the TLS port")
	}
	if _, err := ask(r.addr, &tls.Config{RootCAs: trust()}); err == nil {
		t.Error("TLS was spoken on the plain port")
	}
	c.wantLine(":1003\r\n", "INCR order")
}
