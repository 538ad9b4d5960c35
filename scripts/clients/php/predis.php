<?php
// One client of the matrix: predis, in PHP alone, with its default options.
require __DIR__ . '/matrix.php';
require 'Predis/Autoloader.php';
Predis\Autoloader::register();

function connect(string $password = PASSWORD, array $more = []): Predis\Client
{
    $o = ['host' => HOST, 'port' => PORT];
    if ($password !== '') {
        $o['password'] = $password;
    }
    if (CA !== '') {
        $o += ['scheme' => 'tls', 'ssl' => ['cafile' => CA]];
    }
    return new Predis\Client($o + $more);
}

$r = connect();

run('predis', Predis\Client::VERSION, [
    'connect' => fn() => [(string) $r->ping(), []],
    'nopassword' => fn() => [error_of(fn() => connect('')->incr('order')), []],
    'wrongpassword' => fn() => [error_of(fn() => connect('wrong')->incr('order')), []],
    'incr' => fn() => times(10, fn() => $r->incr('order')),
    'incrby' => fn() => [$r->incrby('order', 100)],
    'pipeline' => fn() => $r->pipeline(function ($p) {
        for ($i = 0; $i < 1000; $i++) {
            $p->incr('order');
        }
    }),
    'multi' => fn() => $r->transaction(function ($t) {
        $t->incr('order');
        $t->incr('order');
        $t->incrby('order', 5);
    }),
    'snowflake' => fn() => times(20, fn() => $r->executeRaw(['SNOWFLAKE.NEXT'])),
    'snowflakes' => fn() => $r->executeRaw(['SNOWFLAKE.NEXT', 'COUNT', 100]),
    'alias' => fn() => times(10, fn() => $r->incr('snowflake:a')),
    'segment' => fn() => [$r->executeRaw(['SEGMENT.NEXT', 'order'])],
    'segments' => fn() => $r->executeRaw(['SEGMENT.NEXT', 'order', 'COUNT', 10]),
    'range' => fn() => $r->executeRaw(['SEGMENT.RANGE', 'order', 50]),
    'get' => fn() => [$r->get('order'), []],
    'refusal' => function () use ($r) {
        $text = error_of(fn() => $r->decr('order'));
        $r->ping();
        return [$text, []];
    },
    'options' => function () {
        $c = connect(PASSWORD, ['database' => 0]);
        $c->client('setname', 'matrix');
        return [$c->incr('order')];
    },
    // It drops a lost connection with an exception and opens a new one at the next call.
    'restart' => fn() => restart(fn() => $r->incr('order')),
    'quit' => function () use ($r) {
        $r->quit();
        return ['', []];
    },
]);
