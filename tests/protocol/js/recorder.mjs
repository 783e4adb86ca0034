/**
 * Records which verbs of the SDKs each test calls. Loaded with `--import` when SANDYARD_COMPATIBILITY names a directory.
 * Classes that the SDKs do not export are found in the return values of verbs.
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach } from 'node:test'

const inside = new AsyncLocalStorage()
const wrappedClasses = new WeakSet()
const passed = {}
let called = new Set()

/** Wrap the static and instance methods that a class defines itself, and those of its parents. */
function wrapClass(target, name, packageName) {
  if (typeof target !== 'function' || wrappedClasses.has(target)) return
  wrappedClasses.add(target)
  wrapMethods(target, name, packageName)
  if (target.prototype) wrapMethods(target.prototype, name, packageName)
  const parent = Object.getPrototypeOf(target)
  if (parent?.name) wrapClass(parent, parent.name, 'e2b')
}

function wrapMethods(holder, name, packageName) {
  for (const key of Object.getOwnPropertyNames(holder)) {
    const { value, configurable, writable } = Object.getOwnPropertyDescriptor(holder, key)
    if (key === 'constructor' || typeof value !== 'function' || !configurable || !writable) continue
    if (/^class\s/.test(Function.prototype.toString.call(value))) continue
    const wrapped = function (...rest) {
      if (inside.getStore()) return value.apply(this, rest)
      called.add(`${packageName}:${name.replace(/^_+|\d+$/g, '')}.${key}`)
      const result = inside.run(true, () => value.apply(this, rest))
      if (typeof result?.then === 'function') return result.then((settled) => wrapResult(settled))
      return wrapResult(result)
    }
    Object.defineProperty(holder, key, { value: wrapped, configurable, writable: true, enumerable: false })
  }
}

/** Wrap the classes of objects in a return value: each new class is a noun with its own verbs. */
function wrapResult(result) {
  if (result === null || typeof result !== 'object') return result
  if (Array.isArray(result)) {
    result.forEach(wrapResult)
    return result
  }
  for (const part of [result, ...Object.values(result)]) {
    const target = part?.constructor
    if (typeof target === 'function' && !isBuiltin(target)) wrapClass(target, target.name, 'e2b')
  }
  return result
}

const isBuiltin = (target) => /\[native code\]/.test(Function.prototype.toString.call(target)) || globalThis[target.name] === target

for (const name of ['e2b', '@e2b/code-interpreter']) {
  const exported = await import(name).catch(() => ({}))
  for (const [key, value] of Object.entries(exported)) {
    if (typeof value !== 'function' || value.prototype instanceof Error || !/^[A-Z]/.test(key)) continue
    wrapClass(value, key, name)
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
