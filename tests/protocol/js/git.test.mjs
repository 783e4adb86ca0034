/** Test of all git verbs of the SDK, with a bare repository in the sandbox as the remote. */
import assert from 'node:assert/strict'
import { withSandbox } from './sandboxes.mjs'

const remote = '/home/user/remote.git'
const work = '/home/user/work'

withSandbox('git verbs', async ({ git, files }) => {
  await git.init(remote, { bare: true, initialBranch: 'main' })
  await git.clone(remote, { path: work })
  await git.configureUser('A Person', 'person@example.com')
  await git.setConfig('core.autocrlf', 'false')
  assert.equal(await git.getConfig('core.autocrlf'), 'false')
  assert.equal(await git.remoteGet(work, 'origin'), remote)
  await git.remoteAdd(work, 'second', remote)
  await files.write(`${work}/a.txt`, 'one\n')
  await git.add(work)
  await git.commit(work, 'first')
  await git.push(work, { remote: 'origin', branch: 'main' })
  assert.equal((await git.status(work)).isClean, true)
  await git.createBranch(work, 'side')
  await git.checkoutBranch(work, 'main')
  await git.deleteBranch(work, 'side', { force: true })
  assert.deepEqual((await git.branches(work)).branches, ['main'])
  await git.pull(work, { remote: 'origin', branch: 'main' })
  await files.write(`${work}/a.txt`, 'two\n')
  await git.restore(work, { paths: ['a.txt'] })
  assert.equal(await files.read(`${work}/a.txt`), 'one\n')
  await git.commit(work, 'empty', { allowEmpty: true })
  await git.reset(work, { mode: 'hard', target: 'origin/main' })
  await git.dangerouslyAuthenticate({ username: 'person', password: 'hidden-token', host: 'git.example.com' })
  assert.match(await files.read('/home/user/.git-credentials'), /hidden-token/)
})
