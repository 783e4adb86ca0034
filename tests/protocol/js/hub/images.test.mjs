/** The verbs that name an image of Docker Hub; ../../test_hub.py starts one, and an engine that finds it. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Template } from 'e2b'

test('images by their own verbs', async () => {
  const described = [
    Template().fromAlpineImage(),
    Template().fromArchImage(),
    Template().fromDebianImage(),
    Template().fromFedoraImage(),
    Template().fromNodeImage(),
    Template().fromBunImage(),
    Template().fromPythonImage(),
    Template().fromUbuntuImage(),
    Template().fromImage('docker.io/library/debian:stable'),
  ]
  for (const template of described) {
    const name = `hub-js-${randomUUID()}`
    await Template.build(template, name)
    assert.equal(await Template.aliasExists(name), true)
  }
})
