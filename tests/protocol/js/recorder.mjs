/**
 * Notes which verbs of the SDKs each test calls; loaded with `--import` when SANDYARD_COMPATIBILITY names a folder.
 * Classes that the SDKs do not export are met as what a verb hands back, or as a part of it.
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach } from 'node:test'

const inside = new AsyncLocalStorage()
const seen = new WeakSet()
const passed = {}
let called = new Set()

/** Wrap what a class has of its own, on itself and on its objects. */
function adoptClass(made, name, from) {
  if (typeof made !== 'function' || seen.has(made)) return
  seen.add(made)
  wrapAll(made, name, from)
  if (made.prototype) wrapAll(made.prototype, name, from)
  const parent = Object.getPrototypeOf(made)
  if (parent?.name) adoptClass(parent, parent.name, 'e2b')
}

function wrapAll(holder, name, from) {
  for (const key of Object.getOwnPropertyNames(holder)) {
    const { value, configurable, writable } = Object.getOwnPropertyDescriptor(holder, key)
    if (key === 'constructor' || typeof value !== 'function' || !configurable || !writable) continue
    if (/^class\s/.test(Function.prototype.toString.call(value))) continue
    const wrapped = function (...rest) {
      if (inside.getStore()) return value.apply(this, rest)
      called.add(`${from}:${name.replace(/^_+|\d+$/g, '')}.${key}`)
      const result = inside.run(true, () => value.apply(this, rest))
      if (typeof result?.then === 'function') return result.then((settled) => adopt(settled))
      return adopt(result)
    }
    Object.defineProperty(holder, key, { value: wrapped, configurable, writable: true, enumerable: false })
  }
}

/** What a verb has handed back: an object of a class not met before is a noun with verbs of its own. */
function adopt(result) {
  if (result === null || typeof result !== 'object') return result
  if (Array.isArray(result)) {
    result.forEach(adopt)
    return result
  }
  for (const part of [result, ...Object.values(result)]) {
    const made = part?.constructor
    if (typeof made === 'function' && !isBuiltin(made)) adoptClass(made, made.name, 'e2b')
  }
  return result
}

const isBuiltin = (made) => /\[native code\]/.test(Function.prototype.toString.call(made)) || globalThis[made.name] === made

for (const name of ['e2b', '@e2b/code-interpreter']) {
  const exported = await import(name).catch(() => ({}))
  for (const [key, value] of Object.entries(exported)) {
    if (typeof value !== 'function' || value.prototype instanceof Error || !/^[A-Z]/.test(key)) continue
    adoptClass(value, key, name)
  }
}

beforeEach(() => {
  called = new Set()
})
afterEach((test) => {
  if (test.passed !== false && called.size) passed[test.name] = [...called]
})
process.on('exit', () => {
  if (!Object.keys(passed).length) return
  const into = process.env.SANDYARD_COMPATIBILITY
  mkdirSync(into, { recursive: true })
  const notes = { test: process.env.SANDYARD_COMPATIBILITY_TEST, passed }
  writeFileSync(join(into, `javascript-${process.pid}-${Date.now()}.json`), JSON.stringify(notes))
})
