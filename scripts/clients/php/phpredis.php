<?php
// One client of the matrix: phpredis, an extension in C, with its default options.
require __DIR__ . '/matrix.php';

function connect($auth = PASSWORD): Redis
{
    $r = new Redis();
    if (CA !== '') {
        $r->connect('tls://' . HOST, PORT, 5, null, 0, 0, ['stream' => ['cafile' => CA]]);
    } else {
        $r->connect(HOST, PORT, 5);
    }
    if ($auth !== '' && $auth !== null) {
        $r->auth($auth);
    }
    return $r;
}

$r = connect();

// It reports an error reply as false, and keeps the text.
$said = function (Redis $c, $reply): string {
    return $reply === false ? (string) $c->getLastError() : 'no error but ' . var_export($reply, true);
};

run('phpredis', phpversion('redis'), [
    'connect' => fn() => [$r->ping() === true ? 'PONG' : 'no', []],
    'nopassword' => fn() => [error_of(function () use ($said) {
        $c = connect(null);
        throw new Exception($said($c, $c->incr('order')));
    }), []],
    'wrongpassword' => fn() => [error_of(fn() => connect('wrong')), []],
    'incr' => fn() => times(10, fn() => $r->incr('order')),
    'incrby' => fn() => [$r->incr('order', 100)],
    'pipeline' => function () use ($r) {
        $p = $r->pipeline();
        for ($i = 0; $i < 1000; $i++) {
            $p->incr('order');
        }
        return $p->exec();
    },
    'multi' => fn() => $r->multi()->incr('order')->incr('order')->incrBy('order', 5)->exec(),
    'snowflake' => fn() => times(20, fn() => $r->rawCommand('SNOWFLAKE.NEXT')),
    'snowflakes' => fn() => $r->rawCommand('SNOWFLAKE.NEXT', 'COUNT', 100),
    'alias' => fn() => times(10, fn() => $r->incr('snowflake:a')),
    'segment' => fn() => [$r->rawCommand('SEGMENT.NEXT', 'order')],
    'segments' => fn() => $r->rawCommand('SEGMENT.NEXT', 'order', 'COUNT', 10),
    'range' => fn() => $r->rawCommand('SEGMENT.RANGE', 'order', 50),
    'get' => fn() => [$r->get('order'), []],
    'refusal' => function () use ($r, $said) {
        $text = $said($r, $r->decr('order'));
        $r->ping();
        return [$text, []];
    },
    'options' => function () {
        $c = connect();
        $c->select(0);
        $c->client('setname', 'matrix');
        $ids = [$c->incr('order')];
        if (PASSWORD !== '') {
            $ids[] = connect([getenv('MATRIX_USER'), getenv('MATRIX_USER_PASSWORD')])->incr('order');
        }
        return $ids;
    },
    // A connection that was lost makes it throw RedisException, or connect again by itself, with the password it was given.
    'restart' => fn() => restart(function () use ($r) {
        $id = $r->incr('order');
        if ($id === false) {
            throw new Exception('false: ' . $r->getLastError());
        }
        return $id;
    }),
    'quit' => fn() => [$r->close(), []],
]);
