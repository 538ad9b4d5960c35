// The JavaScript clients of the matrix: node-redis 5 and 6, ioredis 5 and 6, with their default options.
// clients_test.go says what is asked and judges the answers.
'use strict';
const fs = require('fs');
const path = require('path');
const readline = require('readline');

const env = process.env;
const lib = env.MATRIX_LIB; // the name in package.json
const host = env.MATRIX_HOST, port = Number(env.MATRIX_PORT);
const password = env.MATRIX_PASSWORD || undefined;
const tls = env.MATRIX_CA ? { ca: fs.readFileSync(env.MATRIX_CA) } : undefined;

const module_ = require(lib);
const manifest = JSON.parse(fs.readFileSync(path.join(env.NODE_PATH, lib, 'package.json')));
const name = { redis: 'node-redis', ioredis: 'ioredis' }[manifest.name] + ' ' + manifest.version.split('.')[0];

// An adapter for each of the two libraries: everything below it is the same for both. What the library returns is made
// a string here: a number that was rounded on its way is a wrong string.
const nodeRedis = {
  async connect(o = {}) {
    const c = module_.createClient({
      password, ...o, socket: { host, port, ...(tls && { tls: true, ...tls }) },
    });
    // It tries for ever, also with a password that was refused: that one is told by an event. Without a listener the
    // process would end.
    const refused = new Promise((_, reject) => c.on('error', reject));
    refused.catch(() => {});
    try {
      await Promise.race([c.connect(), refused]);
    } catch (e) {
      c.destroy();
      throw e;
    }
    return c;
  },
  call: (c, ...args) => c.sendCommand(args),
  // A mapping reaches the commands that the library knows. Node-redis 5 does not take it along to sendCommand, whose second
  // argument it has to be.
  exact(c) { return c.withTypeMapping({ [module_.RESP_TYPES.NUMBER]: String }); },
  callExact: (c, ...args) => c.sendCommand(args, { typeMapping: { [module_.RESP_TYPES.NUMBER]: String } }),
  drop: (c) => c.destroy(),
  incr: (c, key) => c.incr(key),
  incrBy: (c, key, n) => c.incrBy(key, n),
  pipeline(c, n) {
    const m = c.multi();
    for (let i = 0; i < n; i++) m.incr('order');
    return m.execAsPipeline();
  },
  // Calls of one tick go out together: this is what most programs use as a pipeline.
  tick: (c, n) => Promise.all(Array.from({ length: n }, () => c.incr('order'))),
  multi: (c) => c.multi().incr('order').incr('order').incrBy('order', 5).exec(),
  async options(c) {
    const d = await this.connect({ database: 0, name: 'matrix', RESP: manifest.version < '6' ? 3 : 2 });
    const ids = [await d.incr('order')];
    await d.close();
    if (password) {
      const e = await this.connect({ username: env.MATRIX_USER, password: env.MATRIX_USER_PASSWORD });
      ids.push(await e.incr('order'));
      await e.close();
    }
    return ids;
  },
  // The library's own cache: CLIENT TRACKING ON, without OPTIN. What it answers must never be older than the last INCR.
  async cache(c) {
    const d = await this.connect({ RESP: 3, clientSideCache: { ttl: 0, maxEntries: 0 } });
    const seen = [];
    const key = `own:${name}`;
    for (let i = 0; i < 5; i++) {
      const issued = await c.incr(key);
      await d.get(key);
      const again = await c.incr(key);
      await d.ping(); // an invalidation that was pushed before this answer has arrived with it
      seen.push([issued, again, Number(await d.get(key))]);
    }
    await d.close();
    const stale = seen.filter(([, again, read]) => read < again);
    return stale.length ? `stale: ${JSON.stringify(stale)}` : 'fresh';
  },
  quit: async (c) => { await c.close(); },
};

const ioredis = {
  async connect(o = {}) {
    const c = new module_.Redis({ host, port, password, ...(tls && { tls }), ...o, lazyConnect: true });
    let said; // a refused password is an event of this library, and its connect() says only that the connection was closed
    c.on('error', (e) => { said = e; });
    try {
      await c.connect();
      await c.ping();
    } catch (e) {
      c.disconnect();
      throw said || e;
    }
    return c;
  },
  call: (c, ...args) => c.call(...args),
  exact() {
    this.recipe = this.recipe || this.connect({ stringNumbers: true });
    return this.recipe;
  },
  async callExact(c, ...args) { return (await this.exact()).call(...args); },
  drop: (c) => c.disconnect(),
  incr: (c, key) => c.incr(key),
  incrBy: (c, key, n) => c.incrby(key, n),
  async pipeline(c, n) {
    const p = c.pipeline();
    for (let i = 0; i < n; i++) p.incr('order');
    return (await p.exec()).map(([e, id]) => { if (e) throw e; return id; });
  },
  async tick(c, n) {
    const d = await this.connect({ enableAutoPipelining: true });
    const ids = await Promise.all(Array.from({ length: n }, () => d.incr('order')));
    await d.quit();
    return ids;
  },
  async multi(c) {
    return (await c.multi().incr('order').incr('order').incrby('order', 5).exec()).map(([e, id]) => { if (e) throw e; return id; });
  },
  async options() {
    const d = await this.connect({ db: 0, connectionName: 'matrix' });
    const ids = [await d.incr('order')];
    await d.quit();
    if (password) {
      const e = await this.connect({ username: env.MATRIX_USER, password: env.MATRIX_USER_PASSWORD });
      ids.push(await e.incr('order'));
      await e.quit();
    }
    return ids;
  },
  async quit(c) {
    if (this.recipe) await (await this.recipe).quit();
    await c.quit(); // answered by OK, and complete only when the server has closed the socket
    await new Promise((done) => { if (c.status === 'end') done(); else c.once('end', done); });
  },
};

const a = manifest.name === 'redis' ? nodeRedis : ioredis;

async function errorOf(call) {
  try {
    return `no error but ${await call()}`;
  } catch (e) {
    return String(e.message || e);
  }
}

async function refusedWith(wrong) {
  return {
    detail: await errorOf(async () => {
      const d = await a.connect({ password: wrong });
      try {
        return await d.ping();
      } finally {
        a.drop(d);
      }
    }),
  };
}

const input = readline.createInterface({ input: process.stdin });
const lines = input[Symbol.asyncIterator]();

async function restart(c) {
  process.stdout.write(JSON.stringify({ event: 'restart' }) + '\n');
  await lines.next();
  let last;
  for (let attempt = 1; attempt < 20; attempt++) {
    try {
      return { detail: `${attempt} attempts`, ids: [await a.incr(c, 'order')] };
    } catch (e) {
      last = e;
    }
  }
  return { detail: `never: ${last}`, ids: [] };
}

async function times(n, call) {
  const got = [];
  for (let i = 0; i < n; i++) got.push(await call());
  return got;
}

const checks = {
  connect: async (c) => ({ detail: await c.ping() }),
  nopassword: () => refusedWith(undefined),
  wrongpassword: () => refusedWith('wrong'),
  incr: (c) => times(10, () => a.incr(c, 'order')),
  incrby: async (c) => [await a.incrBy(c, 'order', 100)],
  pipeline: (c) => a.pipeline(c, 1000),
  tick: (c) => a.tick(c, 1000),
  multi: (c) => a.multi(c),
  snowflake: (c) => times(20, () => a.call(c, 'SNOWFLAKE.NEXT')),
  snowflakes: (c) => a.call(c, 'SNOWFLAKE.NEXT', 'COUNT', '100'),
  alias: (c) => times(10, () => a.incr(c, 'snowflake:a')),
  // With integers of 63 bits the library's own way to read them whole is needed: README's recipe.
  'recipe snowflake': (c) => times(20, () => a.callExact(c, 'SNOWFLAKE.NEXT')),
  'recipe snowflakes': (c) => a.callExact(c, 'SNOWFLAKE.NEXT', 'COUNT', '100'),
  'recipe incr': async (c) => { const d = await a.exact(c); return times(10, () => a.incr(d, 'large')); },
  segment: async (c) => [await a.call(c, 'SEGMENT.NEXT', 'order')],
  segments: (c) => a.call(c, 'SEGMENT.NEXT', 'order', 'COUNT', '10'),
  range: (c) => a.call(c, 'SEGMENT.RANGE', 'order', '50'),
  get: async (c) => ({ detail: await c.get('order') }),
  refusal: async (c) => {
    const said = await errorOf(() => a.call(c, 'DECR', 'order'));
    await c.ping();
    return { detail: said };
  },
  cache: async (c) => ({ detail: await a.cache(c) }),
  options: (c) => a.options(c),
  restart,
  quit: async (c) => { await a.quit(c); return { detail: '' }; },
};

(async () => {
  let c;
  for (const check of env.MATRIX_CHECKS.split(',')) {
    const line = { lib: name, version: manifest.version, check, ok: true, detail: '', ids: [] };
    try {
      c = c || await a.connect();
      const got = await checks[check](c);
      if (Array.isArray(got)) line.ids = got.map(String);
      else Object.assign(line, got, { ids: (got.ids || []).map(String), detail: String(got.detail) });
    } catch (e) {
      line.ok = false;
      line.detail = String(e.stack || e);
    }
    process.stdout.write(JSON.stringify(line) + '\n');
  }
  // After quit nothing may be left that keeps the process alive; without it the connections are.
  if (!env.MATRIX_CHECKS.split(',').includes('quit')) process.stdout.write('', () => process.exit());
  input.close();
  process.stdin.destroy();
})();
