-- wrk ... URL -- [FILE]: GET, or POST of the file's bytes. Ends with one line of JSON.

local sent

function init(arguments)
    if arguments[1] then
        local file = assert(io.open(arguments[1], "rb"))
        wrk.method = "POST"
        wrk.body = file:read("*a")
        file:close()
    end
    sent = wrk.format()
end

function request()
    return sent
end

function done(summary, latency, requests)
    local wrong = summary.errors
    local count = wrong.connect + wrong.read + wrong.write + wrong.status + wrong.timeout
    print(string.format(
        '{"requests": %d, "seconds": %f, "bytes": %d, "errors": %d, "p50_us": %d, "p99_us": %d}',
        summary.requests, summary.duration / 1e6, summary.bytes, count,
        latency:percentile(50), latency:percentile(99)
    ))
end
