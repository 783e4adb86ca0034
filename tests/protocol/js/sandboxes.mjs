/** Sandboxes that are killed after their test, and a helper that waits for a condition instead of a fixed time. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox } from 'e2b'

/** Define a test with its own sandbox: `withSandbox('name', async (sandbox) => …)`, or with options as the second argument. The option
 * `notInGvisor` is the reason to skip the test where sandboxes run in gVisor. */
export function withSandbox(name, ...rest) {
  const body = rest.pop()
  const options = rest.pop() ?? {}
  const skip = process.env.SANDYARD_TEST_ISOLATION === 'gvisor' && options.notInGvisor
  test(name, { skip }, async () => {
    const sandbox = await Sandbox.create(options.template ?? 'base', options)
    try {
      await body(sandbox)
    } finally {
      await sandbox.kill()
    }
  })
}

export async function until(condition, seconds = 15) {
  const deadline = Date.now() + seconds * 1000
  while (!(await condition())) {
    assert.ok(Date.now() < deadline, `the condition was not met within ${seconds} s`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
