/** Sandboxes that end with their test, and waiting for what is seen instead of how long it may take. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'

/** A test with a sandbox of its own: `withSandbox('name', async (sandbox) => …)`, or with options in between. */
export function withSandbox(name, ...rest) {
  const body = rest.pop()
  const options = rest.pop() ?? {}
  test(name, async () => {
    const sandbox = await Sandbox.create(options.template ?? 'base', options)
    try {
      await body(sandbox)
    } finally {
      await sandbox.kill()
    }
  })
}

export async function until(seen, seconds = 15) {
  const deadline = Date.now() + seconds * 1000
  while (!(await seen())) {
    assert.ok(Date.now() < deadline, `not seen within ${seconds} s`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
