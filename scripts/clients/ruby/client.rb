# One client of the matrix: redis-rb with its default options. clients_test.go says what is asked and judges the answers.
require "json"
require "redis"

PASSWORD = ENV["MATRIX_PASSWORD"].empty? ? nil : ENV["MATRIX_PASSWORD"]
CA = ENV["MATRIX_CA"]
TLS = CA.empty? ? {} : { ssl: true, ssl_params: { ca_file: CA } }

def connect(**more)
  Redis.new(**{ host: ENV["MATRIX_HOST"], port: ENV["MATRIX_PORT"].to_i, password: PASSWORD }, **TLS, **more)
end

def error_of
  "no error but #{yield.inspect}"
rescue Redis::BaseError => e
  e.message
end

R = connect

def options
  ids = [connect(db: 0, id: "matrix").incr("order")]
  ids << connect(username: ENV["MATRIX_USER"], password: ENV["MATRIX_USER_PASSWORD"]).incr("order") if PASSWORD
  ids
end

def restart
  puts JSON.generate(event: "restart")
  $stdin.gets
  last = nil
  1.upto(20) do |attempt|
    return { detail: "#{attempt} attempts", ids: [R.incr("order")] }
  rescue Redis::BaseError => e
    last = e.message
  end
  { detail: "never: #{last}" }
end

CHECKS = {
  "connect" => -> { { detail: R.ping } },
  "nopassword" => -> { { detail: error_of { connect(password: nil).ping } } },
  "wrongpassword" => -> { { detail: error_of { connect(password: "wrong").ping } } },
  "incr" => -> { Array.new(10) { R.incr("order") } },
  "incrby" => -> { [R.incrby("order", 100)] },
  "pipeline" => -> { R.pipelined { |p| 1000.times { p.incr("order") } } },
  "multi" => -> { R.multi { |m| m.incr("order"); m.incr("order"); m.incrby("order", 5) } },
  "snowflake" => -> { Array.new(20) { R.call("SNOWFLAKE.NEXT") } },
  "snowflakes" => -> { R.call("SNOWFLAKE.NEXT", "COUNT", 100) },
  "alias" => -> { Array.new(10) { R.incr("snowflake:a") } },
  "segment" => -> { [R.call("SEGMENT.NEXT", "order")] },
  "segments" => -> { R.call("SEGMENT.NEXT", "order", "COUNT", 10) },
  "range" => -> { R.call("SEGMENT.RANGE", "order", 50) },
  "get" => -> { { detail: R.get("order") } },
  "refusal" => -> { said = error_of { R.decr("order") }; R.ping; { detail: said } },
  "options" => -> { options },
  "restart" => -> { restart },
  "quit" => -> { { detail: R.quit } },
}.freeze

$stdout.sync = true
ENV["MATRIX_CHECKS"].split(",").each do |check|
  line = { lib: "redis-rb", version: Redis::VERSION, check: check, ok: true, detail: "", ids: [] }
  begin
    got = CHECKS.fetch(check).call
    got = { ids: got } if got.is_a?(Array)
    line.merge!(got)
    line[:ids] = line[:ids].map(&:to_s)
    line[:detail] = line[:detail].to_s
  rescue StandardError => e
    line.merge!(ok: false, detail: "#{e.class}: #{e.message}")
  end
  puts JSON.generate(line)
end
