<?php
// What the two PHP clients of the matrix share. clients_test.go says what is asked and judges the answers.
error_reporting(E_ALL & ~E_DEPRECATED);
ini_set('display_errors', 'stderr');

define('HOST', getenv('MATRIX_HOST'));
define('PORT', (int) getenv('MATRIX_PORT'));
define('PASSWORD', getenv('MATRIX_PASSWORD'));
define('CA', getenv('MATRIX_CA'));

function error_of(callable $call): string
{
    try {
        return 'no error but ' . var_export($call(), true);
    } catch (Exception $e) {
        return $e->getMessage();
    }
}

function times(int $n, callable $call): array
{
    $got = [];
    for ($i = 0; $i < $n; $i++) {
        $got[] = $call();
    }
    return $got;
}

// restart asks for kill -9 and a new start, then calls until an answer comes: how often is the library's own matter.
function restart(callable $incr): array
{
    echo json_encode(['event' => 'restart']), "\n";
    fgets(STDIN);
    $last = '';
    for ($attempt = 1; $attempt < 20; $attempt++) {
        try {
            return ["$attempt attempts", [$incr()]];
        } catch (Exception $e) {
            $last = $e->getMessage();
        }
    }
    return ["never: $last", []];
}

// run prints one line for each check. A check returns IDs, or [detail, IDs].
function run(string $lib, string $version, array $checks): void
{
    foreach (explode(',', getenv('MATRIX_CHECKS')) as $check) {
        $line = ['lib' => $lib, 'version' => $version, 'check' => $check, 'ok' => true, 'detail' => '', 'ids' => []];
        try {
            $got = $checks[$check]();
            if (count($got) === 2 && is_array($got[1])) {
                [$line['detail'], $got] = $got;
            }
            $line['ids'] = array_map('strval', $got);
            $line['detail'] = strval($line['detail']);
        } catch (Throwable $e) {
            $line['ok'] = false;
            $line['detail'] = get_class($e) . ': ' . $e->getMessage();
        }
        echo json_encode($line), "\n";
    }
}
