package admin

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"redleaf/server"
)

// stamp takes the one number out of an error body that no two answers share.
var stamp = regexp.MustCompile(`"timestamp":\d{13},`)

func cut(body string) string { return stamp.ReplaceAllString(body, `"timestamp":0,`) }

// TestLeafBytes compares answers with those of Leaf's server (Spring Boot 1.5.18), byte for byte.
func TestLeafBytes(t *testing.T) {
	r := start(t, rigOptions{})
	r.row("order", 2001, 2000)
	r.row("com.example.order", 1, 10)
	r.row("a/b", 501, 10)
	r.row("50% off", 601, 10)
	r.row("订单", 701, 10)
	r.row("../up", 801, 10)
	r.row("x//y", 901, 10)
	r.row("order;v=1", 51, 10)
	r.row("bad", 1, 0)
	exception := func(code int, path string) string {
		return fmt.Sprintf(`{"timestamp":0,"status":500,"error":"Internal Server Error","exception":"com.sankuai.inf.leaf.server.exception.LeafServerException","message":"Result{id=%d, status=EXCEPTION}","path":"%s"}`, code, path)
	}
	cases := []struct {
		path, body string
		code       int
		reason     string
	}{
		{"/api/segment/get/order", "2001", 200, ""},
		{"/api/segment/get/order", "2002", 200, ""},
		{"/api/segment/get/order?x=1", "2003", 200, ""},
		{"/api/segment/get/com.example.order", "1", 200, ""}, // leaf S28: Leaf looks up com.example
		{"/api/segment/get/a/b", "501", 200, ""},             // leaf S28: Leaf has no such route
		{"/api/segment/get/a%2Fb", "502", 200, ""},
		{"/api/segment/get/a%2fb", "503", 200, ""},
		{"/api/segment/get/50%25%20off", "601", 200, ""},
		{"/api/segment/get/%E8%AE%A2%E5%8D%95", "701", 200, ""},
		{"/api/segment/get/../up", "801", 200, ""},
		{"/api/segment/get/x//y", "901", 200, ""},
		{"/api/segment/get/order;v=1", "51", 200, ""},
		{"/api/segment/get/none", exception(-2, "/api/segment/get/none"), 500, "NOTAG"},
		{"/api/segment/get/order/", exception(-2, "/api/segment/get/order/"), 500, "NOTAG"},
		{"/api/segment/get/%E8%AE%A2", exception(-2, "/api/segment/get/%E8%AE%A2"), 500, "NOTAG"},
		{"/api/segment/get/%FF", exception(-2, "/api/segment/get/%FF"), 500, "ERR the key"},
		{"/api/segment/get/" + strings.Repeat("k", 129), exception(-2, "/api/segment/get/"+strings.Repeat("k", 129)), 500, "ERR the key is 129 bytes"},
		{"/api/segment/get/bad", exception(-3, "/api/segment/get/bad"), 500, "STORE"},
		{"/api/segment/get/", `{"timestamp":0,"status":404,"error":"Not Found","message":"No message available","path":"/api/segment/get/"}`, 404, ""},
		{"/api/snowflake/get/", `{"timestamp":0,"status":404,"error":"Not Found","message":"No message available","path":"/api/snowflake/get/"}`, 404, ""},
		{"/decodeSnowflakeId?snowflakeId=7304881284001275904", `{"workerId":"186","sequenceId":"0","timestamp":"3030454390894(2066-01-11 16:53:10.894)"}`, 200, ""},
		{"/decodeSnowflakeId?snowflakeId=4611686018427387903", `{"workerId":"1023","sequenceId":"4095","timestamp":"2388346602432(2045-09-06 21:36:42.432)"}`, 200, ""},
		{"/decodeSnowflakeId?snowflakeId=4194304", `{"workerId":"0","sequenceId":"0","timestamp":"1288834974658(2010-11-04 01:42:54.658)"}`, 200, ""},
		{"/decodeSnowflakeId?snowflakeId=x", `{"errorMsg":"snowflake Id反解析发生异常!"}`, 200, ""},
		{"/decodeSnowflakeId?snowflakeId=99999999999999999999", `{"errorMsg":"snowflake Id反解析发生异常!"}`, 200, ""},
		{"/decodeSnowflakeId", `{"timestamp":0,"status":400,"error":"Bad Request","exception":"org.springframework.web.bind.MissingServletRequestParameterException","message":"Required String parameter 'snowflakeId' is not present","path":"/decodeSnowflakeId"}`, 400, ""},
	}
	for _, c := range cases {
		a, body := r.raw("GET " + c.path + " HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
		if a.StatusCode != c.code || cut(body) != c.body {
			t.Errorf("%s: %d %s\nwant %d %s", c.path, a.StatusCode, cut(body), c.code, c.body)
		}
		kind := "text/plain;charset=UTF-8"
		if strings.HasPrefix(c.body, "{") {
			kind = "application/json;charset=UTF-8"
		}
		if got := a.Header.Get("Content-Type"); got != kind {
			t.Errorf("%s: content type %q, want %q", c.path, got, kind)
		}
		if got := a.Header.Get("Redleaf-Error"); (c.reason == "") != (got == "") || !strings.HasPrefix(got, c.reason) {
			t.Errorf("%s: Redleaf-Error is %q, want %q…", c.path, got, c.reason)
		}
		if got := a.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control is %q", c.path, got)
		}
	}
	// Snowflakes: decimal, of the layout, whatever the key.
	a, body := r.raw("GET /api/snowflake/get/any/key HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
	if a.StatusCode != 200 || !regexp.MustCompile(`^\d{19}$`).MatchString(body) {
		t.Errorf("snowflake: %d %q", a.StatusCode, body)
	}
}

// TestLeafMethods: Leaf issues on every method; those whose answer has no body would lose the ID.
func TestLeafMethods(t *testing.T) {
	r := start(t, rigOptions{noSnow: true})
	r.row("order", 1, 10)
	for i, m := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
		if a := r.ask(m, "/api/segment/get/order", "127.0.0.1:1"); a.Code != 200 || a.Body.String() != fmt.Sprint(i+1) {
			t.Errorf("%s: %d %s", m, a.Code, a.Body)
		}
	}
	for _, m := range []string{"HEAD", "OPTIONS", "TRACE"} {
		if a := r.ask(m, "/api/segment/get/order", "127.0.0.1:1"); a.Code != 405 {
			t.Errorf("%s: %d", m, a.Code)
		}
	}
	if a := r.get("/api/segment/get/order"); a.Body.String() != "6" {
		t.Errorf("an ID was lost: %s", a.Body)
	}
}

// TestLeafContentType: a client that asks for JSON refuses to read a number out of text.
func TestLeafContentType(t *testing.T) {
	for accept, want := range map[string]string{
		"":                                     "text/plain;charset=UTF-8",
		"*/*":                                  "text/plain;charset=UTF-8",
		"text/plain, */*":                      "text/plain;charset=UTF-8",
		"application/json":                     "application/json;charset=UTF-8",
		"application/json, application/*+json": "application/json;charset=UTF-8",
		"Application/JSON;q=0.9, */*":          "application/json;charset=UTF-8",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": "text/html;charset=UTF-8",
		"evil/type\r\nX: y": "text/plain;charset=UTF-8",
	} {
		if got := leafType(accept); got != want {
			t.Errorf("Accept %q: %q, want %q", accept, got, want)
		}
	}
}

// TestLeafMakesNoTag: a mistyped path must not begin a counter, whatever INCR may make.
func TestLeafMakesNoTag(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, autoCreate: []string{"*"}})
	if a := r.get("/api/segment/get/ordre"); a.Code != 500 || !strings.Contains(a.Body.String(), "id=-2") {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if _, there := r.db.Row("ordre"); there {
		t.Error("the tag was made")
	}
	r.take("ordre", 1)
	if a := r.get("/api/segment/get/ordre"); a.Code != 200 || a.Body.String() != "2" {
		t.Errorf("once it is there: %d %s", a.Code, a.Body)
	}
}

func TestLeafOff(t *testing.T) {
	r := start(t, rigOptions{noSegment: true, leafOff: true})
	if a := r.get("/api/snowflake/get/x"); a.Code != 404 || !strings.Contains(a.Body.String(), "admin.leaf_api") {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	r = start(t, rigOptions{noSegment: true})
	if a := r.get("/api/segment/get/order"); a.Code != 500 || !strings.Contains(a.Body.String(), "id=-1") || !strings.HasPrefix(a.Header().Get("Redleaf-Error"), "DISABLED ") {
		t.Errorf("an engine that is off: %d %s %v (Leaf gives 0 again and again)", a.Code, a.Body, a.Header())
	}
	for _, path := range []string{"/cache", "/db"} {
		if a := r.get(path); a.Code != 500 || !strings.Contains(a.Body.String(), "You should config leaf.segment.enable=true first") {
			t.Errorf("%s: %d %s", path, a.Code, a.Body)
		}
	}
}

// TestLeafWithoutUsers: only programs on this machine.
func TestLeafWithoutUsers(t *testing.T) {
	r := start(t, rigOptions{noSnow: true})
	r.row("order", 1, 10)
	const path = "/api/segment/get/order"
	for name, code := range map[string]int{
		"another machine":    r.ask("GET", path, "192.0.2.7:4444").Code,
		"a private address":  r.ask("GET", path, "10.0.0.1:4444").Code,
		"no address":         r.ask("GET", path, "@").Code,
		"passed on":          r.get(path, "X-Forwarded-For", "192.0.2.7").Code,
		"a rebound name":     r.get(path, "Host", "evil.example").Code,
		"another origin":     r.get(path, "Origin", "https://evil.example").Code,
		"the null origin":    r.get(path, "Origin", "null").Code,
		"an image elsewhere": r.get(path, "Sec-Fetch-Site", "cross-site").Code,
		"a sibling site":     r.get(path, "Sec-Fetch-Site", "same-site").Code,
	} {
		if code != 403 {
			t.Errorf("%s: %d, want 403", name, code)
		}
	}
	for i, header := range [][]string{{}, {"Origin", "http://127.0.0.1:6381"}, {"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Site", "same-origin"}, {"Host", "localhost"}} {
		if a := r.get(path, header...); a.Code != 200 || a.Body.String() != fmt.Sprint(i+1) {
			t.Errorf("%v: %d %s, want %d: what was refused must cost nothing", header, a.Code, a.Body, i+1)
		}
	}
}

func basic(name, password string) []string {
	return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))}
}

// TestLeafWithUsers: from anywhere, with the rights of the Redis side.
func TestLeafWithUsers(t *testing.T) {
	const secret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" // "secret"
	r := start(t, rigOptions{users: []server.User{
		{Name: "orders", PasswordSHA256: []string{secret}, Tags: []string{"order*"}, Groups: []string{"issue"}},
		{Name: "looker", PasswordSHA256: []string{secret}, Tags: []string{"*"}, Groups: []string{"read"}},
		{Name: "slow", PasswordSHA256: []string{secret}, Tags: []string{"*"}, Groups: []string{"issue"}, Rate: 2},
	}})
	r.row("order", 1, 10)
	r.row("users", 1, 10)
	const path, peer = "/api/segment/get/order", "192.0.2.7:4444"
	if a := r.ask("GET", path, peer, basic("orders", "secret")...); a.Code != 200 || a.Body.String() != "1" {
		t.Errorf("with the right: %d %s", a.Code, a.Body)
	}
	if a := r.ask("GET", "/api/snowflake/get/x", peer, basic("orders", "secret")...); a.Code != 200 {
		t.Errorf("a snowflake: %d %s", a.Code, a.Body)
	}
	for name, c := range map[string]struct {
		path   string
		header []string
		code   int
	}{
		"nobody, even from here":   {path, nil, 401},
		"a wrong password":         {path, basic("orders", "Secret"), 401},
		"no such user":             {path, basic("nobody", "secret"), 401},
		"no default user":          {path, basic("", "secret"), 401},
		"another tag":              {"/api/segment/get/users", basic("orders", "secret"), 403},
		"no right to issue":        {path, basic("looker", "secret"), 403},
		"a page of another site":   {path, append(basic("orders", "secret"), "Sec-Fetch-Site", "cross-site"), 403},
		"a form of another origin": {path, append(basic("orders", "secret"), "Origin", "https://evil.example"), 403},
	} {
		a := r.get(c.path, c.header...)
		if a.Code != c.code {
			t.Errorf("%s: %d %s, want %d", name, a.Code, a.Body, c.code)
		}
		if (a.Code == 401) != (a.Header().Get("WWW-Authenticate") == `Basic realm="redleaf", charset="UTF-8"`) {
			t.Errorf("%s: WWW-Authenticate is %q", name, a.Header().Get("WWW-Authenticate"))
		}
	}
	codes := map[int]int{}
	for range 4 {
		codes[r.ask("GET", path, peer, basic("slow", "secret")...).Code]++
	}
	if codes[200] < 2 || codes[429] < 1 {
		t.Errorf("2 IDs per second: %v", codes)
	}
	if a := r.get(path, basic("orders", "secret")...); a.Code != 200 || a.Body.String() != fmt.Sprint(2+codes[200]) {
		t.Errorf("what was refused cost IDs: %s", a.Body)
	}
}

func TestLeafWithPassword(t *testing.T) {
	r := start(t, rigOptions{noSnow: true, password: "sesame"})
	r.row("order", 1, 10)
	for _, name := range []string{"", "default"} { // as AUTH, with and without a name
		if a := r.ask("GET", "/api/segment/get/order", "192.0.2.7:1", basic(name, "sesame")...); a.Code != 200 {
			t.Errorf("user %q: %d %s", name, a.Code, a.Body)
		}
	}
	if a := r.get("/api/segment/get/order"); a.Code != 401 {
		t.Errorf("without a password: %d", a.Code)
	}
}

func TestLeafPages(t *testing.T) {
	r := start(t, rigOptions{noSnow: true})
	r.row("<script>", 1, 10)
	r.row("order", 1, 100)
	r.take("order", 5)
	a := r.get("/cache")
	for _, want := range []string{
		"<th>name</th><th>init</th><th>next</th><th>pos</th><th>value0</th><th>max0</th><th>step0</th><th>value1</th><th>max1</th><th>step1</th>",
		"<td>order</td><td>true</td>", "<td>6</td><td>101</td><td>100</td>",
	} {
		if a.Code != 200 || !strings.Contains(a.Body.String(), want) {
			t.Errorf("/cache: %d lacks %s\n%s", a.Code, want, a.Body)
		}
	}
	a = r.get("/db")
	for _, want := range []string{"<th>tag</th><th>max</th><th>step</th><th>update</th>", "<td>&lt;script&gt;</td><td>1</td><td>10</td>", "<td>order</td><td>"} {
		if a.Code != 200 || !strings.Contains(a.Body.String(), want) {
			t.Errorf("/db: %d lacks %s\n%s", a.Code, want, a.Body)
		}
	}
}

// TestLeafPageOfManyRows: /db goes page by page, and a crowd of readers is one question to the store.
func TestLeafPageOfManyRows(t *testing.T) {
	r := start(t, rigOptions{noSnow: true})
	for i := range shownRows + 5 {
		r.row(fmt.Sprintf("tag%05d", i), 1, 10)
	}
	first := r.get("/db").Body.String()
	if n := strings.Count(first, "<td>tag"); n != shownRows {
		t.Errorf("%d rows on the first page", n)
	}
	link := regexp.MustCompile(`href="(/db\?after=[^"]+)"`).FindStringSubmatch(first)
	if link == nil {
		t.Fatal("no link to the next page")
	}
	if n := strings.Count(r.get(link[1]).Body.String(), "<td>tag"); n != 5 {
		t.Errorf("%d rows on the second page", n)
	}
	// 50 readers within the time that rows are shown for: the clock is the page's own.
	r.admin.rows.at = time.Now().Add(time.Hour)
	at := r.admin.rows.at
	for range 50 {
		r.get(link[1])
	}
	if r.admin.rows.at != at {
		t.Error("readers of one page ask the store again and again")
	}
}
