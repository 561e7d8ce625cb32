// Package readme holds a test that walks through the README as a reader would:
// what is written there must work.
package readme
