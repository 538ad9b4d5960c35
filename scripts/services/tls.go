package services

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TLSFiles names PEM files: an authority of its own, a server's certificate for localhost and 127.0.0.1, and a
// client's. ServerPEM and ClientPEM hold key and certificates in one file.
type TLSFiles struct {
	CA                    string
	Cert, Key             string
	ClientCert, ClientKey string
	ServerPEM, ClientPEM  string
}

// MakeTLS writes a new authority and certificates signed by it into dir. They are valid for a day.
func MakeTLS(t T, dir string) TLSFiles {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("making certificates: %v", err)
		}
	}
	from := time.Now().Add(-time.Hour)
	serial := int64(0)
	template := func(name string) *x509.Certificate {
		serial++
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: from, NotAfter: from.Add(25 * time.Hour), BasicConstraintsValid: true}
	}
	encode := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	write := func(name string, b ...[]byte) string {
		path := filepath.Join(dir, name)
		var all []byte
		for _, x := range b {
			all = append(all, x...)
		}
		must(os.WriteFile(path, all, 0o600))
		return path
	}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	ca := template("redleaf test authority")
	ca.IsCA, ca.KeyUsage = true, x509.KeyUsageCertSign|x509.KeyUsageCRLSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	caPEM := encode("CERTIFICATE", caDER)

	issue := func(name string, use x509.ExtKeyUsage) (cert, key []byte) {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		c := template(name)
		c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{use}
		c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &k.PublicKey, caKey)
		must(err)
		pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
		must(err)
		return encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)
	}
	cert, key := issue("localhost", x509.ExtKeyUsageServerAuth)
	clientCert, clientKey := issue("redleaf", x509.ExtKeyUsageClientAuth)
	return TLSFiles{
		CA: write("ca.pem", caPEM), Cert: write("server-cert.pem", cert), Key: write("server-key.pem", key),
		ClientCert: write("client-cert.pem", clientCert), ClientKey: write("client-key.pem", clientKey),
		ServerPEM: write("server.pem", key, cert, caPEM), ClientPEM: write("client.pem", clientKey, clientCert, caPEM),
	}
}
