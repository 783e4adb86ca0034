// Evaluates JavaScript and TypeScript for a kernel: requests arrive on one descriptor, one JSON object per line, and one
// answer to each is written to another. State is kept between requests; `await` and `import` work at the top level.
'use strict'
const fs = require('node:fs')
const { createRequire, stripTypeScriptTypes } = require('node:module')
const path = require('node:path')
const { PassThrough } = require('node:stream')
const repl = require('node:repl')
const { pathToFileURL } = require('node:url')
const util = require('node:util')

const [requests, answers] = process.argv.slice(2, 4).map(Number)
process.argv.length = 1

const server = repl.start({
  prompt: '',
  input: new PassThrough(),
  output: new PassThrough(),
  terminal: false,
  useGlobal: true,
  breakEvalOnSigint: true,
})
const evaluateInRepl = server.eval.bind(server)

// The REPL reports errors in a cell, immediate or after an await, to its domain. Errors while no cell is running, in a
// timer or in a promise that nobody awaits, are printed.
let fail = (error) => console.error(error)
const printError = fail
const handleInterrupt = () => fail !== printError && fail(new KeyboardInterrupt())
process.on('SIGINT', handleInterrupt)
process.on('uncaughtException', (error) => fail(error))
process.on('unhandledRejection', (error) => printError(error))
server._domain?.removeAllListeners('error').on('error', (error) => fail(error))

class KeyboardInterrupt extends Error {
  constructor() {
    super('The execution was interrupted')
    this.name = 'KeyboardInterrupt'
    this.stack = `${this.name}: ${this.message}`
  }
}

function evaluate(code) {
  return new Promise((resolve, reject) => {
    fail = (error) => {
      if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') reject(new KeyboardInterrupt())
      else reject(error instanceof repl.Recoverable ? error.err : error)
    }
    // While a script runs, Node itself handles the signal to interrupt it. With a listener it would end the process.
    process.removeListener('SIGINT', handleInterrupt)
    evaluateInRepl(code, server.context, 'cell', (error, value) => (error ? fail(error) : resolve(value)))
    process.on('SIGINT', handleInterrupt)
  }).finally(() => (fail = printError))
}

// Scripts cannot have static imports, so they are replaced with dynamic ones. `var` allows running a cell again.
const NAMED = /^[ \t]*import\s+(?!type\b)([\w$*{][^'";]*?)\s+from\s*(['"])([^'"\n]+)\2[ \t]*;?/gm
const BARE = /^[ \t]*import\s*(['"])([^'"\n]+)\1[ \t]*;?/gm

function replaceImports(code) {
  return code
    .replace(NAMED, (_, bindings, _quote, name) => {
      const load = `await globalThis[Symbol.for('sandyard.import')](${JSON.stringify(name)})`
      const all = bindings.match(/^(?:([\w$]+)\s*,\s*)?\*\s*as\s+([\w$]+)$/)
      if (all) return `var ${all[2]} = ${load};${all[1] ? ` var ${all[1]} = ${all[2]}.default;` : ''}`
      const [, first, rest] = bindings.match(/^([\w$]+)?\s*,?\s*(\{[\s\S]*\})?$/) ?? []
      const parts = [first && `default: ${first}`, rest?.slice(1, -1).replace(/([\w$]+)\s+as\s+([\w$]+)/g, '$1: $2')]
      return `var { ${parts.filter(Boolean).join(', ')} } = ${load};`
    })
    .replace(BARE, (_, _quote, name) => `await globalThis[Symbol.for('sandyard.import')](${JSON.stringify(name)});`)
}

globalThis[Symbol.for('sandyard.import')] = async (name) => {
  if (/^[a-z]+:/.test(name) && !name.startsWith('npm:')) return import(name)
  const plain = name.replace(/^npm:/, '')
  const found = createRequire(path.join(process.cwd(), 'cell')).resolve(plain)
  return import(path.isAbsolute(found) ? pathToFileURL(found).href : found)
}

const RICH = {
  _toHtml: 'text/html',
  _toMarkdown: 'text/markdown',
  _toSvg: 'image/svg+xml',
  _toPng: 'image/png',
  _toJpeg: 'image/jpeg',
}

function formatValue(value) {
  const data = { 'text/plain': util.inspect(value) }
  if (value === null || typeof value !== 'object') return data
  if (typeof value._toMime === 'function') Object.assign(data, value._toMime())
  for (const [method, mime] of Object.entries(RICH)) {
    if (typeof value[method] === 'function') data[mime] = value[method]()
  }
  return data
}

function describeError(error) {
  if (!util.types.isNativeError(error)) {
    const text = util.inspect(error)
    return { ename: 'Error', evalue: text, traceback: [`Uncaught ${text}`] }
  }
  const lines = String(error.stack ?? error).split('\n')
  const own = lines.findIndex((line) => /^\s+at .*(node:(internal|vm|repl)|evaluator\.cjs)/.test(line))
  return { ename: error.name, evalue: error.message, traceback: own < 0 ? lines : lines.slice(0, own) }
}

async function answer(request) {
  const before = {}
  try {
    Object.assign(process.env, request.env)
    for (const [name, value] of Object.entries(request.env_once ?? {})) {
      before[name] = request.env_back?.[name] ?? process.env[name]
      process.env[name] = value
    }
    globalThis.require = createRequire(path.join(process.cwd(), 'cell'))
    const typed = request.language === 'typescript'
    const code = replaceImports(typed ? stripTypeScriptTypes(request.code, { mode: 'transform' }) : request.code)
    const value = await evaluate(code)
    return value === undefined ? {} : { data: formatValue(value) }
  } catch (error) {
    return { error: describeError(error) }
  } finally {
    for (const [name, value] of Object.entries(before)) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  }
}

async function serve() {
  let unread = ''
  for await (const chunk of fs.createReadStream(null, { fd: requests, encoding: 'utf8' })) {
    unread += chunk
    const lines = unread.split('\n')
    unread = lines.pop()
    for (const line of lines) fs.writeSync(answers, JSON.stringify(await answer(JSON.parse(line))) + '\n')
  }
  process.exit(0)
}

serve()
