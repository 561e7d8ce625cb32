// SPDX-License-Identifier: GPL-2.0
/*
 * An importer of dma-bufs in the kernel, for tests. It is a device that can
 * reach memory by DMA and a file, /dev/importer, that takes commands:
 *
 *   sum FD   attach the dma-buf, map it for the device, read it, let go of it
 *   hold FD  attach and map it, and keep it so
 *   drop     let go of what is held
 *
 * Reading gives the outcome of the last sum: the exporter's name, the bytes, the
 * pieces of the scatter list, and the 64-bit FNV-1a hash of the bytes. One who
 * calls at a time.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/uaccess.h>

#define FNV_BASIS 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

struct hold {
	struct dma_buf *buf;
	struct dma_buf_attachment *at;
	struct sg_table *sgt;
};

static struct platform_device *reacher;
static struct hold held;
static char outcome[128];

static void let_go(struct hold *h)
{
	if (h->sgt)
		dma_buf_unmap_attachment_unlocked(h->at, h->sgt, DMA_BIDIRECTIONAL);
	if (h->at)
		dma_buf_detach(h->buf, h->at);
	if (h->buf)
		dma_buf_put(h->buf);
	memset(h, 0, sizeof(*h));
}

static int take(struct hold *h, int fd)
{
	void *p = dma_buf_get(fd);

	if (IS_ERR(p))
		return PTR_ERR(p);
	h->buf = p;
	p = dma_buf_attach(h->buf, &reacher->dev);
	if (IS_ERR(p))
		goto fail;
	h->at = p;
	p = dma_buf_map_attachment_unlocked(h->at, DMA_BIDIRECTIONAL);
	if (IS_ERR(p))
		goto fail;
	h->sgt = p;
	return 0;
fail:
	let_go(h);
	return PTR_ERR(p);
}

static void sum(struct hold *h)
{
	u64 hash = FNV_BASIS, bytes = 0;
	struct sg_page_iter it;

	for_each_sgtable_page(h->sgt, &it, 0) {
		u8 *page = kmap_local_page(sg_page_iter_page(&it));
		int i;

		for (i = 0; i < PAGE_SIZE; i++)
			hash = (hash ^ page[i]) * FNV_PRIME;
		kunmap_local(page);
		bytes += PAGE_SIZE;
	}
	snprintf(outcome, sizeof(outcome), "%s %llu %u %016llx\n", h->buf->exp_name, bytes, h->sgt->nents, hash);
}

static ssize_t command(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	char text[32] = {};
	struct hold h = {};
	int fd, err = -EINVAL;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	if (sscanf(text, "sum %d", &fd) == 1) {
		err = take(&h, fd);
		if (!err)
			sum(&h);
		let_go(&h);
	} else if (sscanf(text, "hold %d", &fd) == 1) {
		err = held.buf ? -EBUSY : take(&held, fd);
	} else if (!strncmp(text, "drop", 4)) {
		let_go(&held);
		err = 0;
	}
	return err ? err : size;
}

static ssize_t answer(struct file *file, char __user *to, size_t size, loff_t *offset)
{
	return simple_read_from_buffer(to, size, offset, outcome, strlen(outcome));
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.write = command,
	.read = answer,
};

static struct miscdevice door = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "importer",
	.fops = &operations,
};

static int __init begin(void)
{
	int err;

	reacher = platform_device_register_simple("importer", -1, NULL, 0);
	if (IS_ERR(reacher))
		return PTR_ERR(reacher);
	err = dma_coerce_mask_and_coherent(&reacher->dev, DMA_BIT_MASK(64));
	if (!err)
		err = misc_register(&door);
	if (err)
		platform_device_unregister(reacher);
	return err;
}

static void __exit end(void)
{
	misc_deregister(&door);
	let_go(&held);
	platform_device_unregister(reacher);
}

module_init(begin);
module_exit(end);
MODULE_IMPORT_NS(DMA_BUF);
MODULE_DESCRIPTION("Importer of dma-bufs for tests");
MODULE_LICENSE("GPL");
