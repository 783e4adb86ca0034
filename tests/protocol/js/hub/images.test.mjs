/** Tests of the verbs that name an image of Docker Hub. ../../test_hub.py starts a fake Docker Hub and an engine that uses it. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { Template } from 'e2b'

test('templates from Docker Hub images', async () => {
  const templates = [
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
  for (const template of templates) {
    const name = `hub-js-${randomUUID()}`
    await Template.build(template, name)
    assert.equal(await Template.aliasExists(name), true)
  }
})
